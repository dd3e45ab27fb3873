#!/usr/bin/env bash
# The family tree, measured: vocabulary, shards, nine rows, page. About an hour on one large GPU.
#   runs/family.sh CORPUS HELDOUT TASKS OUT [options of benchmarks/family.py, such as --rows bert,gpt --minutes 3]
# CORPUS and HELDOUT are text files (one paragraph a line, a blank line between documents; .gz, .xz or .zst) or folders of them.
# TASKS holds glue-cola/, glue-sst2/, glue-mrpc/, glue-stsb/, glue-rte/, conll2003/ (train and dev files) and blimp/blimp.jsonl.
# What is done is not done again: stop it whenever you like, and give the same command later. VOCAB=FOLDER takes a vocabulary that exists.
set -euo pipefail
if [ $# -lt 4 ]; then sed -n '2,6s/^# \?//p' "$0"; exit 2; fi
corpus=$1 heldout=$2 tasks=$3 out=$4
shift 4
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out"
vocab=${VOCAB:-$out/vocab}
[ -e "$vocab" ] || bertkit vocab "$corpus" --size 30000 --out "$vocab"
[ -e "$out/shards" ] || bertkit shards "$corpus" --vocab "$vocab" --out "$out/shards"
[ -e "$out/heldout" ] || bertkit shards "$heldout" --vocab "$vocab" --out "$out/heldout"
python "$here/benchmarks/family.py" --shards "$out/shards" --heldout "$out/heldout" --tasks "$tasks" --work "$out/work" --out "$out/family.json" --jobs "${JOBS:-8}" "$@"
python "$here/benchmarks/family.py" --table "$out/family.json" --out "$out/family.md"
echo "page in $out/family.md, numbers in $out/family.json"
