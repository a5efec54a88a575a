// A plotly drawing that never falls behind: one react in flight, the newest wins.

export function picture(element) {
  let pending = null;
  let busy = false;
  let cost = 0;

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
      const began = performance.now();
      try {
        const { data, layout } = make();
        await globalThis.Plotly.react(element, data, layout, {
          staticPlot: true,
          displayModeBar: false,
        });
      } catch (error) {
        console.error(error);
      }
      cost = performance.now() - began;
    }
    busy = false;
  }

  return {
    element,
    /** Milliseconds that the last drawing took. */
    get cost() {
      return cost;
    },
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

/** What all drawings share: transparent, no titles, no grid clutter, sizes given, not guessed. */
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

/** Says whether anything that a drawing depends on has changed since the last call. */
export function changes() {
  let last = [];
  return (...now) => {
    const changed = now.length !== last.length || now.some((value, i) => value !== last[i]);
    last = now;
    return changed;
  };
}
