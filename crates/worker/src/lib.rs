//! The leader of a worker group: server, scheduler, driver thread, sessions.
