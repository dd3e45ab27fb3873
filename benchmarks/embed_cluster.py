"""`bertkit embed --cluster` on a local Ray cluster of two nodes, one of them killed midway: the bytes of one process.

    python benchmarks/embed_cluster.py --out RESULT.json

Needs the extra `cluster`. Nodes are processes on this machine, as `ray.cluster_utils` starts them.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}  # before torch and Ray are imported

import ray
from embed_file import rows_finished, tiny_model, write_lines
from ray.cluster_utils import Cluster

from bertkit.cli.main import run
from bertkit.files import whole_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=300_000)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    ray.init(
        address=cluster.address, log_to_driver=False
    )  # before the second node comes: this process stays at the head
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    with tempfile.TemporaryDirectory() as name:
        result = embed_both_ways(Path(name), options.lines, cluster, second)
    ray.shutdown()
    cluster.shutdown()
    with whole_file(options.out) as draft:
        draft.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    sys.exit(0 if result["equal_bytes"] and result["nodes_at_the_end"] == 1 else 1)


def embed_both_ways(folder: Path, lines: int, cluster: Cluster, second: Any) -> dict[str, object]:
    model, texts = tiny_model(folder / "model"), write_lines(folder / "lines.txt", lines)
    one, many, killed = folder / "one.npy", folder / "many.npy", list[int]()
    words = ["embed", str(texts), "--model", str(model), "--out"]
    assert run([*words, str(one)]) == 0
    nodes = alive()
    threading.Thread(target=kill_midway, args=(many, lines, cluster, second, killed), daemon=True).start()
    began = time.perf_counter()
    assert run([*words, str(many), "--cluster"]) == 0
    return {
        "what": f"bertkit embed --cluster of {lines:,} short lines, ray {ray.__version__}",
        "nodes_at_first": nodes,
        "rows_finished_when_a_node_was_killed": killed,
        "nodes_at_the_end": alive(),
        "seconds": round(time.perf_counter() - began, 1),
        "equal_bytes": one.read_bytes() == many.read_bytes(),
    }


def kill_midway(out: Path, lines: int, cluster: Cluster, second: Any, killed: list[int]) -> None:
    while rows_finished(out) < lines // 5:
        time.sleep(0.02)
    killed.append(rows_finished(out))
    cluster.remove_node(second, allow_graceful=False)


def alive() -> int:
    return sum(node["Alive"] for node in ray.nodes())


if __name__ == "__main__":
    main()
