// A plotly drawing that never falls behind: one react in flight, the newest wins, others are dropped.

/** Colours and typefaces of the page, read from the style sheet's own variables. */
export function palette(root) {
  const style = getComputedStyle(root);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    ink: read("ink"), soft: read("ink-soft"), line: read("line"), paper: read("paper"),
    final: read("final"), raw: read("raw"), cut: read("cut"), cutBack: read("cut-back"),
    tally: read("tally"), select: read("select"), font: read("font"),
  };
}

export function picture(element) {
  let pending = null;
  let busy = false;

  async function work() {
    busy = true;
    while (pending && element.isConnected) {
      if (!globalThis.Plotly) {
        // The page loads plotly beside this module; the text alternatives serve meanwhile.
        await new Promise((resolve) => setTimeout(resolve, 100));
        continue;
      }
      const make = pending;
      pending = null;
      const { data, layout } = make();
      try {
        await globalThis.Plotly.react(element, data, layout, { staticPlot: true, displayModeBar: false });
      } catch (error) {
        console.error(error);
      }
    }
    busy = false;
  }

  return {
    element,
    /** @param {() => {data: object[], layout: object}} make called when its turn comes */
    draw(make) {
      if (!element.isConnected || !element.clientWidth) return;
      pending = make;
      if (!busy) work();
    },
    purge() {
      pending = null;
      if (globalThis.Plotly && element.data) globalThis.Plotly.purge(element);
    },
  };
}

/** What all drawings share: transparent, no titles, no grid clutter, sizes given and never guessed. */
export function baseLayout(colours, width, height, margin) {
  return {
    width,
    height,
    margin: { pad: 0, ...margin },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: colours.font, size: 13, color: colours.soft },
    showlegend: false,
    hovermode: false,
    dragmode: false,
  };
}
