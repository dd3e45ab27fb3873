"""How many files a reader has to open to follow one command from its first line to its output."""

import json
import subprocess
import sys
from pathlib import Path

import bertkit

MOST_FILES = 40  # of `bertkit embed`; 60 before rows of tables and engines were imported late
READABLE = {"model/encoder.py", "model/layer.py", "model/attention.py"}

# Every function and class body counts that is run after the package is imported; module bodies, lambdas and
# comprehensions do not. The arguments are the package's folder and the command.
TRACER = """
import json, sys, threading
import torch
from bertkit.cli.main import run

package, *command = sys.argv[1:]
torch.set_num_threads(1)  # batches are computed in this thread, and not in a pool
files = set()

def enter(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(package) and not code.co_name.startswith("<"):
        files.add(code.co_filename.removeprefix(package))

threading.setprofile(enter)
sys.setprofile(enter)
status = run(command)
sys.setprofile(None)
assert status == 0, status
print(json.dumps(sorted(files)))
"""


def files_entered(folder, *command):
    package = f"{Path(bertkit.__file__).parent}/"
    done = subprocess.run(
        [sys.executable, "-c", TRACER, package, *command], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_texts_become_vectors_through_few_files_and_the_readable_layers(tmp_path):
    (tmp_path / "texts.txt").write_text("A cat sat on the mat.\nA dog lay on the rug.\nInterest rates rose again.\n")
    files = files_entered(tmp_path, "embed", "texts.txt", "--out", "v.npy")
    assert (tmp_path / "v.npy").is_file()
    assert set(files) >= READABLE
    assert len(files) <= MOST_FILES, files
