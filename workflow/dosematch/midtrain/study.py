"""The `t5` section of `config/config.yaml`: which arms are mid-trained, at which scale, with which seeds."""

from dosematch.strict import Distinct, Strict


class T5Study(Strict):
    """Names a file of `config/t5/` and files of `config/arms/t5/`."""

    scale: str
    seeds: Distinct[int]
    arms: Distinct[str]
