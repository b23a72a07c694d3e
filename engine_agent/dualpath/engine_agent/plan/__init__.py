"""Pure: the two read paths of Fig. 4 as steps, and where a layer's bytes lie in a region of full blocks."""
