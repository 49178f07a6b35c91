"""Words to objects: the command line. The only importer of click."""
