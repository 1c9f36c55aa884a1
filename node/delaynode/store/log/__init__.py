"""The CommitLog: frames in segment files, their checksums, and the offsets that say how far each reader is."""
