"""Drills: faults injected on purpose, with expectations, and the measure of the recovery that follows.

`kinds` says what can be broken and how, `scenario` reads a drill that is written down, `faults` injects and undoes,
`runner` follows one drill from the fault to the verdict, `verdict` judges (pure), `results` writes it down, `stage`
brings up a cluster (`clusters`) with training jobs to break, `site` uses one that runs already.
"""
