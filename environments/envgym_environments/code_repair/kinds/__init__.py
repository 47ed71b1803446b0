"""Further kinds of task on the same environment: what is asked differs; world, tools, format and referee are one.

A kind is a `contract.Kind`: where it can be asked, what was seen when it was tried, and the task that follows from
both. `registry.KINDS` lists them, `build` makes certified tasks, `judges.JUDGES` decides what tests alone do not.
"""
