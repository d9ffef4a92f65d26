"""Measuring: verify, time and compare builds in a killable process per device.

``worker.Measurer`` runs jobs (``job.MeasureJob``) in such a process; ``run.measure``,
``compare.final`` and ``compare.benchmark`` are what runs inside of it; ``pool.CompilePool``
compiles in parallel meanwhile.
"""
