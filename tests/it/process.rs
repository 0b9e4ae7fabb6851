//! The `hawser` binary as a child process on loopback.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use hawser_client::Client;
use hawser_tests::demo_model;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Long enough for a cold start on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The binary that was built with these tests.
fn binary() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let binary = tests.parent().unwrap().parent().unwrap().join("hawser");
    assert!(binary.is_file(), "{} is missing: run ./scripts/test, which builds it", binary.display());
    binary
}

fn command(arguments: &[&str]) -> Command {
    command_in(&[], arguments)
}

/// As [`command`], started by another one, such as `ip netns exec name`, that runs what follows it.
fn command_in(starter: &[&str], arguments: &[&str]) -> Command {
    let mut command = match starter {
        [] => Command::new(binary()),
        [program, more @ ..] => {
            let mut command = Command::new(program);
            command.args(more).arg(binary());
            command
        }
    };
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A test that fails leaves nothing behind.
    command.kill_on_drop(true);
    command
}

/// Runs a command to its end.
pub(crate) async fn run(arguments: &[&str], input: &str) -> Output {
    let mut child = command(arguments).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    tokio::time::timeout(LIMIT, child.wait_with_output()).await.expect("the command ends").unwrap()
}

/// A command that people type into, line by line.
pub(crate) struct Typed {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Typed {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = command(arguments).stdin(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let stdin = child.stdin.take().unwrap();
        Self { child, stdin, lines }
    }

    /// Types a line and gives everything that is printed up to a line that holds `mark`, it included.
    pub(crate) async fn type_until(&mut self, line: &str, mark: &str) -> String {
        self.stdin.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        let mut seen = String::new();
        let search = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                seen.push_str(&line);
                seen.push('\n');
                if line.contains(mark) {
                    return;
                }
            }
            panic!("the command ended without saying {mark:?}");
        };
        tokio::time::timeout(LIMIT, search).await.expect("the command answers");
        seen
    }

    /// The end of its input, and the rest of its output once it has ended well.
    pub(crate) async fn finish(mut self) -> String {
        drop(self.stdin);
        let mut rest = String::new();
        let end = async {
            self.lines.into_inner().read_to_string(&mut rest).await.unwrap();
            self.child.wait().await.unwrap()
        };
        let status = tokio::time::timeout(LIMIT, end).await.expect("the command ends");
        assert!(status.success(), "{status}: {rest}");
        rest
    }
}

/// A server that runs until it is stopped or dropped.
pub(crate) struct Server {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Server {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_in(&[], arguments)
    }

    /// A server whose standard error is kept for [`Server::outcome`].
    pub(crate) fn start_heard(arguments: &[&str]) -> Self {
        let mut child = command(arguments).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// A server that another command starts, in the same process or as its child.
    pub(crate) fn start_in(starter: &[&str], arguments: &[&str]) -> Self {
        let mut child = command_in(starter, arguments).stderr(Stdio::inherit()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// A router with the store embedded, and its address.
    pub(crate) async fn router(more: &[&str]) -> (Self, String) {
        let mut arguments = vec!["router", "--listen", "127.0.0.1:0"];
        arguments.extend(more);
        let mut router = Self::start(&arguments);
        let uri = router.uri_after("router listens on ").await;
        (router, uri)
    }

    /// A group of the demo model, once it has joined the router at `uri`.
    pub(crate) async fn worker(uri: &str, group: &str, more: &[&str]) -> Self {
        Self::member(["--router", uri], group, more).await.0
    }

    /// A group of the demo model, once it is in the cluster that `joins` names, and its address.
    pub(crate) async fn member(joins: [&str; 2], group: &str, more: &[&str]) -> (Self, String) {
        let model = demo_model();
        let mut arguments = vec!["worker", joins[0], joins[1], "--group", group, "--threads", "1"];
        arguments.extend(["--model", model.to_str().unwrap()]);
        if !more.contains(&"--kv-memory-mib") {
            arguments.extend(["--kv-memory-mib", "128"]);
        }
        arguments.extend(more);
        let mut worker = Self::start(&arguments);
        let uri = worker.uri_after(&format!("group {group} serves at ")).await;
        (worker, uri)
    }

    /// The URI that follows `mark` on a line of the server's output.
    pub(crate) async fn uri_after(&mut self, mark: &str) -> String {
        let line = self.line_with(mark).await;
        let (_, rest) = line.split_once(mark).unwrap();
        rest.split_whitespace().next().unwrap().to_owned()
    }

    /// The next line of the server's output that holds `mark`.
    pub(crate) async fn line_with(&mut self, mark: &str) -> String {
        let search = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if line.contains(mark) {
                    return line;
                }
            }
            panic!("the server ended without saying {mark:?}");
        };
        tokio::time::timeout(LIMIT, search).await.expect("the server says it")
    }

    /// Waits until standard error, which was kept, has `mark` in it, and gives what was said there so far.
    pub(crate) async fn complaint(&mut self, mark: &str) -> String {
        let errors = self.child.stderr.as_mut().expect("its standard error was kept");
        let mut said = Vec::new();
        let search = async {
            while !String::from_utf8_lossy(&said).contains(mark) {
                let read = errors.read_buf(&mut said).await.unwrap();
                assert!(read > 0, "it ended without saying {mark:?}: {}", String::from_utf8_lossy(&said));
            }
        };
        tokio::time::timeout(LIMIT, search).await.expect("it says so");
        String::from_utf8(said).unwrap()
    }

    /// How it ended, and what it said on standard error where that was kept.
    pub(crate) async fn outcome(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        let end = async {
            if let Some(mut errors) = self.child.stderr.take() {
                errors.read_to_string(&mut said).await.unwrap();
            }
            self.child.wait().await.unwrap().code()
        };
        let code = tokio::time::timeout(LIMIT, end).await.expect("the server ends");
        (code, said)
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().expect("the process was not waited for").to_string();
        let sent = std::process::Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(sent.success());
    }

    /// SIGTERM, and the rest of its output once it has ended well.
    pub(crate) async fn stop(mut self) -> String {
        self.signal("-TERM");
        let mut rest = String::new();
        let end = async {
            self.lines.into_inner().read_to_string(&mut rest).await.unwrap();
            self.child.wait().await.unwrap()
        };
        let status = tokio::time::timeout(LIMIT, end).await.expect("the server ends");
        assert!(status.success(), "{status}: {rest}");
        rest
    }

    /// SIGTERM, without waiting.
    pub(crate) fn terminate(&self) {
        self.signal("-TERM");
    }

    /// Its end, which is a good one; it was told to before.
    pub(crate) async fn ended(mut self) {
        let mut rest = String::new();
        self.lines.into_inner().read_to_string(&mut rest).await.unwrap();
        let status = self.child.wait().await.unwrap();
        assert!(status.success(), "{status}: {rest}");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("the process was not waited for")
    }

    /// SIGSTOP: it is there and does nothing.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    /// SIGCONT, after [`Server::freeze`].
    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    /// SIGKILL: no goodbye to anyone.
    pub(crate) async fn kill(mut self) {
        self.kill_now().await;
    }

    /// As [`Server::kill`], of one that is replaced later.
    pub(crate) async fn kill_now(&mut self) {
        self.child.kill().await.unwrap();
    }
}

pub(crate) async fn connect(uri: &str) -> Client {
    Client::connect(uri).await.unwrap()
}
