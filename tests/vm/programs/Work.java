// SPDX-License-Identifier: Apache-2.0 OR MIT
public class Work {
    public static void main(String[] args) throws Exception {
        byte[][] blocks = new byte[24][];
        long sum = 0;
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < blocks.length; i++) {
                blocks[i] = new byte[2 << 20];
                for (int j = 0; j < blocks[i].length; j += 4096) {
                    if (blocks[i][j] != 0) throw new Error("not zero");
                    blocks[i][j] = (byte) i;
                }
            }
            System.gc();
        }
        for (byte[] block : blocks) sum += block[4096];
        Process child = new ProcessBuilder("sh", "-c", "exit 5").start();
        System.out.println(sum + " " + child.waitFor());
    }
}
