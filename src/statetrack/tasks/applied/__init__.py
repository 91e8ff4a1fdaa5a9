"""Tasks that look like work: program traces, boxes, puzzles, recall. One file a task."""
