"""Search for the scheduler's best knobs with Optuna: many machines may work on one study in Optuna's SQL storage.

A trial is a case with some knobs changed; its value is the JCT, or the mean TTFT where sessions arrive over time. Each
trial's sampling has a seed of its own, made of the study's seed and the trial's number: the same history goes on the
same way after a stop, and two machines with one seed never draw the same point.
"""


from optuna.trial import TrialState

ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
