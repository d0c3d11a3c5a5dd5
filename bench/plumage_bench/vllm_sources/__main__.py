"""`python -m plumage_bench.vllm_sources VERSION | WHEEL | FOLDER`"""

import sys

from plumage_bench.vllm_sources.check import main

sys.exit(main())
