// Texts of the page that stand out less from what is behind them than WCAG AA asks for.
(() => {
  const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const weak = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const holder = walker.currentNode.parentElement;
    const seen = holder.checkVisibility({ visibilityProperty: true }) && !holder.closest(".unseen, noscript, option");
    if (!walker.currentNode.data.trim() || !seen) continue;
    const style = getComputedStyle(holder);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    const ink = parse(holder instanceof SVGElement ? style.fill : style.color);
    const [light, dark] = [luminance(ink), luminance(behind(holder))].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < (large ? 3 : 4.5)) weak.push(`${walker.currentNode.data.trim()}: ${contrast.toFixed(2)}`);
  }
  return weak;
})();
