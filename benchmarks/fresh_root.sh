#!/usr/bin/env bash
# A README line in a fresh root file system, typed by a user who is not root, with nothing of ours cached.
#
#   [MIRROR=URL] benchmarks/fresh_root.sh ROOT bookworm|trixie|noble [LINE]     (as root; needs debootstrap)
#
# ROOT is made where it is not there, Ubuntu's from MIRROR (its key is not Debian's). The user `dev` has a clone of
# this checkout's HEAD in its home. LINE: by default README's test command. Mounts and processes are the root's own;
# certificates and resolv.conf are this machine's.
set -euo pipefail
root=$(realpath -m "$1") suite=$2 checkout=$(realpath "$(dirname "$0")/..")
line=${3:-$(sed -n 's/ *# the tests$//p' "$checkout/README.md")}

if [ ! -d "$root/home/dev" ]; then
  more=() from=()
  if [ -n "${MIRROR:-}" ]; then
    more=(--no-check-gpg "--components=main,universe")
    from=("$MIRROR" /usr/share/debootstrap/scripts/gutsy)
  fi
  debootstrap --variant=minbase --include=python3-pip,ca-certificates,git,curl,libnuma1 "${more[@]}" \
    "$suite" "$root" "${from[@]}" >&2
  chroot "$root" useradd --create-home --shell /bin/bash dev
fi
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp --dereference /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
home=$root/home/dev/mmrepro
[ -d "$home" ] || git init --quiet "$home"
git -C "$home" -c safe.directory='*' fetch --quiet "$checkout" HEAD
git -C "$home" -c safe.directory='*' reset --quiet --hard FETCH_HEAD
chown -R "$(stat -c %u:%g "$root/home/dev")" "$home"

export root line
# shellcheck disable=SC2016  # the inner shell expands them
exec unshare --mount --pid --fork --kill-child bash -ec '
  mount --make-rprivate /
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  certificates=/etc/ssl/certs/ca-certificates.crt
  # Not a chroot: inside one a user may make no namespace, and a client of a stranger has no box.
  cd "$root"
  pivot_root . .
  umount --lazy .
  exec env --ignore-environment PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 TERM=dumb \
    SSL_CERT_FILE=$certificates PIP_CERT=$certificates REQUESTS_CA_BUNDLE=$certificates HOME=/home/dev USER=dev \
    setpriv --reuid dev --regid dev --init-groups bash -c "cd ~/mmrepro && $line"'
