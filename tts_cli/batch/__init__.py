"""Many utterances, done once: a manifest's rows spoken into files by one engine, several processes or a Ray cluster."""
