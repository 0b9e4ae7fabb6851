# Shared by the scripts: what a fresh Debian or Ubuntu lacks, and the demo model. Sourced, never run.

say() { printf '\n\033[1m==> %s\033[0m\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Runs a command as root: directly, or through sudo.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "'$*' needs root, and there is no sudo; run it yourself and start again"
  fi
}

# Prints the Debian packages that are missing for building and for fetching the demo model.
missing_packages() {
  { command -v cc && command -v c++; } >/dev/null || echo build-essential
  command -v pkg-config >/dev/null || echo pkg-config
  command -v protoc >/dev/null || echo protobuf-compiler
  [ -e /usr/include/google/protobuf/descriptor.proto ] || echo libprotobuf-dev
  [ -e /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
  python3 -m pip --version >/dev/null 2>&1 || echo python3-pip
}

# Prints the Debian packages that only tests need: they start servers of their own on free ports.
missing_test_packages() {
  # Without root the tests of network namespaces are skipped, and say so.
  [ "$(id -u)" -ne 0 ] || command -v ip >/dev/null || echo iproute2
  command -v etcd >/dev/null || [ -n "${HAWSER_ETCD:-}${HAWSER_SKIP_ETCD:-}" ] || echo etcd-server
  command -v ip >/dev/null || echo iproute2
}

# Installs what is missing, and nothing else: for building, or with `tests` for the tests too.
install_missing() {
  local packages
  packages=$({ missing_packages; [ "${1:-}" != tests ] || missing_test_packages; } | tr '\n' ' ')
  [ -n "$packages" ] || return 0
  command -v apt-get >/dev/null ||
    die "missing: $packages(names of Debian packages); install them with this system's package manager"
  say "Installing $packages"
  as_root apt-get update -qq
  # shellcheck disable=SC2086 # a list of words
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages
}

# A Rust toolchain that is new enough.
need_rust() {
  if ! command -v cargo >/dev/null && [ -e "$HOME/.cargo/env" ]; then
    . "$HOME/.cargo/env"
  fi
  command -v cargo >/dev/null ||
    die "there is no cargo; install Rust: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
  local have want=1.95
  have=$(rustc --version | cut -d' ' -f2)
  [ "$(printf '%s\n%s\n' "$want" "$have" | sort -V | head -1)" = "$want" ] ||
    die "Rust $have is too old; $want or later is needed: rustup update stable"
}

# Fetches the demo model with the given hawser binary; does nothing where it is there already.
fetch_model() {
  say "Demo model"
  "$1" pull smollm2-135m
}
