"""A program at the other end of a `Server`, with an engine that needs no model: `light.py SOCKET SETTINGS VERSION`.

It says the ids 1, 2, 3, ... for ever; a context that holds 13 breaks it, and the weights "bad" are refused.
"""

import sys

from envgym_agents.policies.vllm.server import serve
from envgym_agents.policies.vllm.wire import Delta


class LightEngine:
    name = "light 1"

    def __init__(self, settings):
        self.running = {}

    def add(self, key, request, salt):
        self.running[key] = [request, 0]

    def tell(self, key, ids):
        raise ValueError("it knows no probabilities")

    def step(self):
        found = []
        for key, (request, done) in list(self.running.items()):
            if 13 in request.ids:
                raise RuntimeError("no step for 13")
            self.running[key][1] += 1
            finish = "length" if done + 1 == request.max_tokens else None
            if finish:
                del self.running[key]
            found.append(Delta(key, [done + 1], [-1.0], finish, 0))
        return found

    def abort(self, keys):
        for key in keys:
            self.running.pop(key, None)

    def load(self, file):
        if "bad" in file:
            raise ValueError("no such weight")


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), LightEngine)
