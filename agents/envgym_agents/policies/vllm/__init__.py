"""vLLM as a policy: `policy` samples, `engine` and `serving` run where vLLM is, `link` starts and ends them."""
