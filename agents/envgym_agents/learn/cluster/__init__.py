"""A training run over many hosts: Ray places what plays, what samples and what learns.

`placement` says what is where, `reach` and `connect` find, start or join a cluster, `actors` are what plays and
samples there, `places` is that as the run sees it, `learners` is a divided learner, `elsewhere` begins all of it.
Nothing here computes a loss or keeps an episode.
"""
