// How large a document is: its elements, and the characters of its texts, of its attributes where these could be too
// many, and of what its fields hold besides; also within open shadow roots. Nothing is counted behind `most` elements.
(most, bound) => {
  let elements = 0, letters = 0;
  const roots = [document];
  while (roots.length) {
    const root = roots.pop(), whole = root === document ? document.documentElement : root;
    if (!whole) continue;
    const all = root.querySelectorAll('*');
    elements += all.length;
    if (elements > most) return [elements, 0];
    letters += whole.textContent.length;
    if (letters > bound) return [elements, letters];
    for (let at = 0, inner; at < all.length; at++) if ((inner = all[at].shadowRoot)) roots.push(inner);
    for (const field of root.querySelectorAll('input,textarea')) {
      if (field.type !== 'file' && field.value !== field.defaultValue) letters += field.value.length;
    }
    // what is marked up is never shorter than its attributes, and is counted fast
    const marked = root === document ? whole.outerHTML : root.innerHTML;
    if (letters + marked.length <= bound) continue;
    for (const one of all) {
      for (const name of one.getAttributeNames()) letters += name.length + one.getAttribute(name).length;
      if (letters > bound) return [elements, letters];
    }
  }
  return [elements, letters];
}
