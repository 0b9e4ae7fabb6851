//! Machines on one switch, each a network namespace of this one, whose cables can be pulled.
//!
//! Needs root and the `ip` command; where either is missing there is no network, and the tests that need one say so and
//! pass. Ends with the value: the namespaces go, and with them their ends of the cables.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// The switch is a namespace of its own; this process is plugged into it as machine 0.
pub(crate) struct Network {
    name: String,
    subnet: u8,
    machines: u8,
}

/// Networks of one test process are numbered, and processes are told apart by their ids.
static NETWORKS: AtomicU8 = AtomicU8::new(0);

impl Network {
    /// `machines` machines, numbered from 1, and this one as 0. `None` where there can be no network.
    #[allow(clippy::print_stderr, reason = "a test that was passed over says so")]
    pub(crate) fn new(machines: u8) -> Option<Self> {
        let number = NETWORKS.fetch_add(1, Ordering::SeqCst);
        let id = std::process::id();
        let name = format!("hw{}x{number}", id % 100_000);
        // 10.64.0.0 to 10.127.255.0: neither this machine's nor a container network's, most likely.
        let subnet = 64 + u8::try_from((id + u32::from(number)) % 64).unwrap();
        let mut network = Self { name, subnet, machines: 0 };
        if let Err(reason) = network.build(machines) {
            eprintln!("passed over: no network namespaces here ({reason}); run as root, with iproute2");
            return None;
        }
        Some(network)
    }

    fn build(&mut self, machines: u8) -> Result<(), String> {
        let switch = self.switch();
        ip(&["netns", "add", &switch])?;
        ip(&["-n", &switch, "link", "add", "sw", "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", "sw", "up"])?;
        let near = format!("{}p0", self.name);
        ip(&["link", "add", &near, "type", "veth", "peer", "name", "p0", "netns", &switch])?;
        ip(&["addr", "add", &format!("{}/24", self.address(0)), "dev", &near])?;
        ip(&["link", "set", &near, "up"])?;
        self.plug(0)?;
        for machine in 1..=machines {
            let (host, port) = (self.host(machine), format!("p{machine}"));
            ip(&["netns", "add", &host])?;
            self.machines = machine;
            ip(&[
                "-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "eth", "netns", &host,
            ])?;
            ip(&["-n", &host, "addr", "add", &format!("{}/24", self.address(machine)), "dev", "eth"])?;
            ip(&["-n", &host, "link", "set", "eth", "up"])?;
            ip(&["-n", &host, "link", "set", "lo", "up"])?;
            self.plug(machine)?;
        }
        Ok(())
    }

    fn switch(&self) -> String {
        format!("{}sw", self.name)
    }

    fn host(&self, machine: u8) -> String {
        format!("{}m{machine}", self.name)
    }

    fn plug(&self, machine: u8) -> Result<(), String> {
        let (switch, port) = (self.switch(), format!("p{machine}"));
        ip(&["-n", &switch, "link", "set", &port, "master", "sw", "up"])
    }

    pub(crate) fn address(&self, machine: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.subnet, 77, machine + 1)
    }

    /// What a command line begins with that runs on the machine.
    pub(crate) fn on(&self, machine: u8) -> [String; 4] {
        ["ip".to_owned(), "netns".to_owned(), "exec".to_owned(), self.host(machine)]
    }

    /// Pulls the machine's cable: what is on its way is lost, and nobody is told.
    pub(crate) fn cut(&self, machine: u8) {
        ip(&["-n", &self.switch(), "link", "set", &format!("p{machine}"), "nomaster"]).unwrap();
    }

    /// Plugs it in again.
    pub(crate) fn mend(&self, machine: u8) {
        self.plug(machine).unwrap();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let hosts = (1..=self.machines).map(|machine| self.host(machine));
        for namespace in hosts.chain([self.switch()]) {
            // What was never made cannot be removed.
            let _gone = ip(&["netns", "delete", &namespace]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {}", arguments.join(" "), said.trim()))
}
