"""The one node of a cluster that a run starts: Ray on this host's loopback, until this process ends.

A process of its own, below `keeper`, because Ray's node ends by `atexit` and a killed driver has none.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["ADDRESS"]

ADDRESS = "address"
"""The file in the cluster's folder that says where it is, once it is there."""


def main(arguments: Sequence[str]) -> int:
    """``head FOLDER CPUS GPUS STORE_BYTES``; the environment has Ray's switches (`connect`)."""
    import ray

    init: Any = ray.init  # its types know less than it takes
    folder, cpus, gpus, store = Path(arguments[0]), *map(int, arguments[1:])
    node = init(
        address="local",
        num_cpus=cpus,
        num_gpus=gpus,
        object_store_memory=store,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=str(folder),
    )
    written = folder / f"{ADDRESS}.new"
    written.write_text(node.address_info["gcs_address"])
    os.replace(written, folder / ADDRESS)
    signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
