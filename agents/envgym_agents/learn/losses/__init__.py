"""The learner's formulas: pure functions over one value per sampled token (or per episode), each with its source.

`policy` has the policy gradients, `divergence` what holds a policy near another, `correction` what a sampler that
is not the learner needs, `preference` and `imitation` what learns without a gradient of return, `masks` and
`penalties` what is left out and what costs. `objective` is what a configuration makes of them. No model is run
here.
"""
