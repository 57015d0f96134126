//! Take ready huge pages from the prezero daemon.
