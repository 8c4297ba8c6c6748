/** The way in which people point: on a touch screen the keyboard covers the page, and its Enter is the only key that breaks a line. */

export const touch = matchMedia("(pointer: coarse)");
