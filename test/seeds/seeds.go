// Package seeds says which random cases a test looks at. Without a word they are
// the same ones each time; a soak asks for more, and for others.
package seeds

import (
	"iter"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

const (
	// envSeed is the first seed; 0 if not set.
	envSeed = "BERTH_SEED"
	// envCount is how many times the usual number of cases; 1 if not set.
	envCount = "BERTH_COUNT"
)

// Count is how many cases to look at, where so many are usual.
func Count(t testing.TB, usual int) int {
	t.Helper()
	return usual * int(number(t, envCount, 1))
}

// First is the first of them; a test with a single case takes it as its seed.
func First(t testing.TB) uint64 {
	t.Helper()
	return number(t, envSeed, 0)
}

// Each is their seeds. A failure names its seed; BERTH_SEED repeats it first.
func Each(t testing.TB, usual int) iter.Seq[uint64] {
	t.Helper()
	first, count := First(t), Count(t, usual)
	return func(yield func(uint64) bool) {
		for i := range uint64(count) {
			if !yield(first + i) {
				return
			}
		}
	}
}

// Rounds runs one round a seed, usual of them unless BERTH_COUNT says otherwise,
// and ends the test at the first that fails, with the seed to repeat it. It
// returns how many rounds there were.
func Rounds(t *testing.T, usual int, round func(seed uint64, r *rand.Rand)) int {
	t.Helper()
	n := 0
	for seed := range Each(t, usual) {
		one(t, seed, round)
		n++
	}
	return n
}

// one tells the seed also where the round itself ends the test.
func one(t *testing.T, seed uint64, round func(seed uint64, r *rand.Rand)) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("repeat with %s=%d", envSeed, seed)
		}
	}()
	round(seed, rand.New(rand.NewPCG(seed, 0)))
	if t.Failed() {
		t.FailNow()
	}
}

func number(t testing.TB, env string, usual uint64) uint64 {
	t.Helper()
	text := os.Getenv(env)
	if text == "" {
		return usual
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || env == envCount && n == 0 {
		t.Fatalf("%s=%q: use a number, such as 1", env, text)
	}
	return n
}
