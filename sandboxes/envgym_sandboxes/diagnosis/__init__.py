"""Why a backend does not work on a host, and the command that changes it: facts, trials, and causes from both."""
