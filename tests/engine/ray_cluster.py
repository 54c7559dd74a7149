"""A Ray cluster on this machine, told on stdin what to do: ``add LABEL``, ``remove
LABEL``.

With an argument Ray's subreaper is on, and that part of the machine's memory in use
makes Ray kill a worker.

A node is a raylet with workers of its own; ``remove`` kills it as a power cut would.
The end of stdin ends the cluster."""

import sys

import ray
from ray.cluster_utils import Cluster

SIZES = {"object_store_memory": 100 * 2**20}
SUBREAPER = {"kill_child_processes_on_worker_exit_with_raylet_subreaper": True}


def main() -> None:
    config: dict[str, object] = {}
    if len(sys.argv) > 1:
        config = {**SUBREAPER, "memory_usage_threshold": float(sys.argv[1])}
        config["memory_monitor_refresh_ms"] = 100
    head = {"num_cpus": 1, "_system_config": config, **SIZES}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = {}
    try:
        print(cluster.address, flush=True)
        for line in sys.stdin:
            what, label = line.split()
            if what == "add":
                nodes[label] = cluster.add_node(
                    num_cpus=2,
                    resources={"engine_host": 1},
                    labels={"mmrepro.machine": label},
                    **SIZES,
                )
            else:
                cluster.remove_node(nodes.pop(label), allow_graceful=False)
            print("done", flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()


main()
