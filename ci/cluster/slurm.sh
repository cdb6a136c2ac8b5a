#!/bin/bash
# Builds a bundle on the nodes of one Slurm job, by a Ray that lives as long as it:
#
#     sbatch ci/cluster/slurm.sh --model Llama-3.3-70B --tp 8 --out llama.tar.zst
#
# The words are those of `flytune build`, without --ray. The build's driver runs on the
# first node, whose device the bundle is for. What follows is for two nodes of 8 GPUs.
#
#SBATCH --job-name=flytune
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=04:00:00
# Two minutes before its end the job stops the build, and is queued to go on with it.
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

port=${FLYTUNE_RAY_PORT:-6379}
export RAY_USAGE_STATS_ENABLED=0
# Others share the network: only who has this job's token may use its Ray.
RAY_AUTH_TOKEN=$(python3 -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token

if [[ ${SLURM_CPUS_PER_TASK:-} ]]; then
    # srun does not take it from the job by itself.
    export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
fi

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
# An address, not a name that a node may know as its own loopback's.
addresses=$(srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" hostname -I)
address=${addresses%% *}:$port

steps=()
stop_ray() {
    # srun hands the signal on, and Ray ends with `--block`.
    if ((${#steps[@]})); then
        kill -TERM "${steps[@]}" 2>/dev/null || true
        wait "${steps[@]}" || true
    fi
}
trap stop_ray EXIT

on_node() {
    local node=$1
    shift
    srun --nodes=1 --ntasks=1 --nodelist="$node" --overlap ray start --block "$@" &
    steps+=("$!")
}

on_node "${nodes[0]}" --head --port="$port" --include-dashboard=false
for _ in {1..60}; do
    ray health-check --address "$address" >/dev/null 2>&1 && break
    sleep 1
done
for node in "${nodes[@]:1}"; do
    on_node "$node" --address="$address"
done

flytune build --ray "$address" "$@" &
build=$!
again=
trap 'again=yes; kill -TERM "$build" 2>/dev/null || true' TERM
code=0
wait "$build" || code=$?
if [[ $again ]]; then
    # The trap has cut the first wait short.
    wait "$build" || code=$?
    # The same words go on from the journal.
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
