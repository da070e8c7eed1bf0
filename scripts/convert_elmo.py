"""Published ELMo weights (allenai/bilm-tf) to a folder for transformers' AutoModel.

    python scripts/convert_elmo.py options.json weights.hdf5 FOLDER

Then, in Python: `import plmctl.models.elmo`, and `AutoModel.from_pretrained("FOLDER")`.
Needs h5py: pip install 'plmctl[elmo]'.
"""

import argparse
import sys
from pathlib import Path

from plmctl.errors import PlmError


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("options", type=Path, help="options.json")
    parser.add_argument("weights", type=Path, help="the HDF5 file published with it")
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument(
        "--words", type=int, help="words that further pretraining predicts, if other than published"
    )
    args = parser.parse_args()
    if args.folder.exists():
        sys.exit(f"{args.folder}: this is there already; name a new folder")
    from plmctl.models.elmo import convert_published

    try:
        model = convert_published(args.options, args.weights)
    except PlmError as error:
        sys.exit(str(error))
    if args.words:
        model.config.vocab_size = args.words
    model.save_pretrained(args.folder)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters in {args.folder}")


if __name__ == "__main__":
    main()
