"""Machine-learning programs as tasks: `tree` what they stand on, `data` what they learn, `kind` the tasks."""
