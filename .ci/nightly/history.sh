#!/usr/bin/env bash
# The nights' history on a branch of its own: the ledger, and what is made of it. No force push.
#
#   history.sh fetch BRANCH DIR            BRANCH into the new folder DIR; a first commit if there is none
#   history.sh push BRANCH DIR MESSAGE     commit what changed in DIR, and push it
#
# --dry-run before them: fetch as always; push tells what it would commit, and does neither.
# DIR is a git worktree of the repository in which this is called. Incidents stay off the branch:
# merge into DIR with `mmrepro matrix merge … --no-incidents --out DIR`.
# Where somebody else pushed meanwhile, their ledger and ours are merged and pushed again.
# HISTORY_REMOTE: the remote (origin). HISTORY_TRIES: of a push (5). HISTORY_QUARANTINE: a file, for the
# reports of what was merged. MMREPRO: the command (mmrepro).
set -euo pipefail

readonly FILES=(ledger.jsonl night.md dashboard.html junit.xml)
readonly REMOTE=${HISTORY_REMOTE:-origin}
readonly TRIES=${HISTORY_TRIES:-5}
read -ra MMREPRO_COMMAND <<<"${MMREPRO:-mmrepro}"

fail() {
    echo "history.sh: $1" >&2
    exit "${2:-4}"
}

usage() {
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
}

# git as somebody, where nobody has said who commits.
as_someone() {
    local name email
    name=$(git config user.name || true)
    email=$(git config user.email || true)
    git -c user.name="${name:-mmrepro nightly}" -c user.email="${email:-nightly@localhost}" "$@"
}

# Fetch BRANCH into FETCH_HEAD; 2: there is no such branch.
newest() {
    local there
    there=$(git ls-remote --heads "$REMOTE" "refs/heads/$1") || fail "$REMOTE does not answer"
    [[ -n $there ]] || return 2
    git fetch --quiet --no-tags --depth=1 "$REMOTE" "refs/heads/$1" || fail "cannot fetch $1"
}

fetch() {
    local branch=$1 dir=$2 tree start
    [[ ! -e $dir ]] || fail "$dir is there already: take it away with git worktree remove $dir" 2
    if newest "$branch"; then
        start=$(git rev-parse FETCH_HEAD)
        git cat-file -e "$start:ledger.jsonl" 2>/dev/null || [[ -z $(git ls-tree "$start") ]] ||
            fail "$branch of $REMOTE has files and no ledger.jsonl: it is no history" 2
    else
        tree=$(git mktree </dev/null)
        start=$(as_someone commit-tree "$tree" -m "Begin the history of the nights")
        echo "$REMOTE has no branch $branch yet: it begins with the first push"
    fi
    git worktree prune
    git worktree add --quiet --detach "$dir" "$start"
}

# Their ledger, and ours added to it.
rejoin() {
    local branch=$1 dir=$2 ours
    ours=$(mktemp -d)
    cp "$dir/ledger.jsonl" "$ours/"
    if (cd "$dir" && newest "$branch"); then
        git -C "$dir" reset --quiet --hard FETCH_HEAD
        "${MMREPRO_COMMAND[@]}" matrix merge "$ours" --no-incidents --out "$dir" \
            ${HISTORY_QUARANTINE:+--quarantine "$HISTORY_QUARANTINE"} ||
            fail "the ledgers could not be merged; ours is in $ours" $?
    fi
    rm -r "$ours"
}

commit() {
    local dir=$1 message=$2 file
    for file in "${FILES[@]}"; do
        [[ ! -f $dir/$file ]] || git -C "$dir" add --force -- "$file"
    done
    git -C "$dir" diff --cached --quiet || (cd "$dir" && as_someone commit --quiet --message "$message")
}

push() {
    local branch=$1 dir=$2 message=$3 try size
    [[ -f $dir/ledger.jsonl ]] || fail "$dir has no ledger.jsonl" 2
    [[ $(git -C "$dir" rev-parse --show-toplevel 2>/dev/null) == $(cd "$dir" && pwd -P) ]] ||
        fail "$dir was not made by: history.sh fetch $branch $dir" 2
    size=$(($(wc -c <"$dir/ledger.jsonl") >> 20))
    if ((size >= 50)); then
        echo "ledger.jsonl has $size MiB; GitHub takes 100: soon another branch is to be begun" >&2
    fi
    if [[ -n $dry_run ]]; then
        echo "would commit to $branch of $REMOTE: $message"
        git -C "$dir" status --short -- "${FILES[@]}"
        return
    fi
    for ((try = 1; try <= TRIES; try++)); do
        commit "$dir" "$message"
        if git -C "$dir" push --quiet "$REMOTE" "HEAD:refs/heads/$branch"; then
            echo "pushed to $branch of $REMOTE: $(git -C "$dir" log -1 --format='%h %s')"
            return
        fi
        echo "push $try of $TRIES was refused" >&2
        sleep "$((try - 1))"
        rejoin "$branch" "$dir"
    done
    fail "$branch of $REMOTE took none of $TRIES pushes"
}

dry_run=
if [[ ${1:-} == --dry-run ]]; then
    dry_run=1
    shift
fi
[[ $# -ge 3 ]] || usage
git check-ref-format --branch "$2" >/dev/null 2>&1 || fail "$2 cannot name a branch" 2
case $1/$# in
    fetch/3) fetch "$2" "$3" ;;
    push/4) push "$2" "$3" "$4" ;;
    *) usage ;;
esac
