"""Generated from proto/dualpath/v1 by `make proto`; never edited by hand."""
