// The simulator needs something to simulate; all that matters is in Python.
`timescale 1ns / 1ps
module nothing;
    reg clock = 0;
    always #5 clock = !clock;
endmodule
