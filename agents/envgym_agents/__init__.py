"""Who acts and learns: agents, policies, the learner."""
