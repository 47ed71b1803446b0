"""A training run over many hosts: Ray places what plays and what samples; the learner stays with the driver.

`placement` says what is where, `connect` starts or joins a cluster, `actors` are what runs there, `places` is all
of it as the run sees it. Nothing here computes a loss or keeps an episode.
"""
