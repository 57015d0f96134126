//! The vocabulary of prezero.
