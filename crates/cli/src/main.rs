//! The prezero command.
fn main() {}
