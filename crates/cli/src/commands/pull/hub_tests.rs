//! The hub's names and files, and downloads from a server that breaks off.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use super::*;

#[test]
fn names_are_two_parts_and_never_leave_the_folder() {
    let parsed = Source::parse("org/repo:a.gguf").unwrap();
    assert_eq!(parsed, Source { repo: "org/repo".into(), file: Some("a.gguf".into()) });
    assert!(Source::parse("org/repo").is_ok());
    for wrong in [
        "",
        "org",
        "org/",
        "/repo",
        "org/repo:",
        "../repo",
        "org/..",
        "org/repo:../x",
        "org/repo:a//b",
        "o/r?x",
    ] {
        assert!(Source::parse(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn a_checkpoint_wins_then_the_only_gguf_file() {
    let check = |files: &[&str]| {
        let files: Vec<String> = files.iter().map(|&name| name.to_owned()).collect();
        select("o/r", &files).map_err(|error| error.to_string())
    };
    let folder = ["config.json", "tokenizer.json", "model.safetensors"].map(str::to_owned).to_vec();
    let listed = [
        "README.md",
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "onnx/model.safetensors",
        "a.gguf",
    ];
    assert_eq!(check(&listed), Ok(Selection::Folder(folder)));
    assert_eq!(check(&["a.gguf", "README.md"]), Ok(Selection::Single("a.gguf".into())));
    assert!(check(&["a.gguf", "b.gguf"]).unwrap_err().contains("a.gguf, b.gguf"));
    assert!(check(&["README.md"]).is_err());
}

/// Serves `content` over HTTP; the first answer breaks off after `cut` bytes. Gives the ranges that were asked for.
fn broken_server(
    content: Vec<u8>,
    cut: usize,
    answers: usize,
) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let mut ranges = Vec::new();
        for index in 0..answers {
            let (mut socket, _) = listener.accept().unwrap();
            let head = BufReader::new(socket.try_clone().unwrap()).lines().map(Result::unwrap);
            let head: Vec<String> = head.take_while(|line| !line.is_empty()).collect();
            let range =
                head.iter().find_map(|line| line.strip_prefix("range: bytes=")).unwrap_or("0-").to_owned();
            let from: usize = range.trim_end_matches('-').parse().unwrap();
            let rest = &content[from..];
            let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
            write!(
                socket,
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                rest.len()
            )
            .unwrap();
            socket.write_all(&rest[..if index == 0 { cut } else { rest.len() }]).unwrap();
            ranges.push(range);
        }
        ranges
    });
    (url, thread)
}

#[test]
fn a_download_that_broke_off_goes_on_where_it_stopped() {
    let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    let (url, server) = broken_server(content.clone(), 150_000, 2);
    let dir = tempfile::tempdir().unwrap();
    let source = Source::parse("o/r:m.gguf").unwrap();
    let target = dir.path().join("m.gguf");
    assert!(fetch(&url, &source, dir.path()).is_err());
    assert!(!target.exists(), "half a file is never at its place");
    assert_eq!(fetch(&url, &source, dir.path()).unwrap(), target);
    assert_eq!(std::fs::read(&target).unwrap(), content);
    fetch(&url, &source, dir.path()).expect("what is there is not fetched again: the server is gone");
    assert_eq!(server.join().unwrap(), ["0-", "150000-"]);
}

#[test]
fn without_a_connection_the_error_says_what_to_do() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let dir = tempfile::tempdir().unwrap();
    let error = fetch(&url, &Source::parse("o/r:m.gguf").unwrap(), dir.path()).unwrap_err().to_string();
    assert!(error.contains("cannot reach") && error.contains("by hand"), "{error}");
}
