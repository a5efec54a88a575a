// Numbers by language: the same number is the same string wherever it appears.

const MIB = 1024 * 1024;

/**
 * @param {string} language "en" or "tr"
 * @param {(key: string, values?: object) => string} t words of that language
 */
export function numbers(language, t) {
  const locale = language === "tr" ? "tr-TR" : "en-US";
  const make = (options) => {
    const formatter = new Intl.NumberFormat(locale, options);
    return (value) => formatter.format(value);
  };
  const whole = make({ maximumFractionDigits: 0 });
  const upToOne = make({ maximumFractionDigits: 1 });
  const oneDigit = make({ minimumFractionDigits: 1, maximumFractionDigits: 1 });
  const twoDigits = make({ minimumFractionDigits: 2, maximumFractionDigits: 2 });
  const threeDigits = make({ minimumFractionDigits: 3, maximumFractionDigits: 3 });
  const roughly = make({ maximumSignificantDigits: 2 });
  const percent = make({ style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
  const percentWhole = make({ style: "percent", maximumFractionDigits: 0 });

  /** "12.3%" ("%12,3"); below 0.1 % "1 in 4,200"; never rounded to all or nothing. */
  function probability(p) {
    if (p == null || Number.isNaN(p)) return "–";
    if (p <= 0) return percentWhole(0);
    if (p > 1 - 1e-9) return percentWhole(1);
    if (p >= 0.9995) return t("format.above", { value: percent(0.999) });
    if (p >= 0.001) return percent(p);
    if (p < 1e-9) return t("format.one_in_more_than", { count: whole(1e9) });
    return t("format.one_in", { count: roughly(1 / p) });
  }

  /** Tokens among which a uniform choice is as unsure: e to the entropy in nats. */
  function equalTokens(entropy) {
    const among = Math.exp(entropy);
    return among < 9.95 ? upToOne(among) : whole(among);
  }

  return {
    probability,
    equalTokens,
    count: whole,
    share: percentWhole,
    unit: threeDigits,
    nats: twoDigits,
    // A true minus, as wide as a plus; never a minus before a zero.
    signed: (value) => twoDigits(Math.abs(value) < 0.005 ? 0 : value).replace("-", "−"),
    speed: oneDigit,
    tick: upToOne,
    tickUnit: make({ maximumFractionDigits: 2 }),
    ms: (value) => t("format.ms", { value: value < 10 ? oneDigit(value) : whole(value) }),
    seconds: (ms) => t("format.s", { value: twoDigits(ms / 1000) }),
    times: twoDigits,
    mib: (bytes) => t("format.mib", { value: (bytes < 100 * MIB ? oneDigit : whole)(bytes / MIB) }),
  };
}
