// One sequential scale for the probability of a token, light to dark (dark to light on the dark
// theme): single hue, lightness strictly monotone, so it reads without colour vision as well.

const STOPS = {
  light: ["#f2f6fc", "#c3d8f2", "#7eaee0", "#3a78bd", "#0f4686", "#08284f"],
  dark: ["#1d2733", "#21405f", "#2b6396", "#4d90cc", "#8bbdec", "#d3e8ff"],
};

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** @param {number} share 0…1 @param {"light"|"dark"} theme @returns {number[]} r, g, b */
function mix(share, theme) {
  const stops = STOPS[theme];
  const place = Math.min(1, Math.max(0, share)) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(place));
  const [a, b] = [channels(stops[low]), channels(stops[low + 1])];
  return a.map((value, i) => Math.round(value + (b[i] - value) * (place - low)));
}

function luminance(rgb) {
  const [r, g, b] = rgb.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/**
 * Background and ink for a share of the scale. Black or white, whichever contrasts more: at least
 * 4.58:1 on any colour (WCAG AA asks 4.5:1).
 */
export function shade(share, theme) {
  const rgb = mix(share, theme);
  return {
    background: `rgb(${rgb.join(",")})`,
    ink: luminance(rgb) > 0.179 ? "#000" : "#fff",
  };
}

/** The same scale for plotly. */
export function colorscale(theme) {
  const stops = STOPS[theme];
  return stops.map((colour, i) => [i / (stops.length - 1), colour]);
}

/** What chips may be coloured by: share of the scale, 1 = the model was sure. */
export const MEASURES = {
  probability: (step) => step.raw,
  // Rank 1 is full, each tenfold is a third less: 1, 10, 100, 1,000.
  rank: (step) => 1 - Math.log10(Math.max(1, step.rank)) / 3,
  // 0 nats is full; e^8 is about 3,000 equal tokens.
  entropy: (step) => 1 - step.entropy / 8,
  // −log2 of the probability, 0 to 12 bits.
  surprise: (step) => 1 + Math.log2(Math.max(step.raw, 1e-12)) / 12,
};
