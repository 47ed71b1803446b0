"""The learner: a warm start on expert trajectories, then policy gradients with exact token masks.

``loss`` holds the formulas, ``pack`` turns episodes into tensors, ``score`` runs a model over them,
``warm_start`` and ``reinforce`` are the two training loops, ``evaluate`` counts, ``run`` puts them in order.
Needs the extra ``[train]``.
"""
