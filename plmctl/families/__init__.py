"""One file per family: sizes, how to build and load its network, where its heads begin."""
