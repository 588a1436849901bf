package main

import (
	"strings"
	"testing"
)

// TestExample: pods that ask for a scheduler that does not run wait for ever.
func TestExample(t *testing.T) {
	for scheduler, want := range schedulers {
		text, err := example(scheduler)
		if err != nil {
			t.Fatal(err)
		}
		for other, name := range schedulers {
			line := "schedulerName: " + name + "\n"
			if got := strings.Contains(string(text), line); got != (other == scheduler) {
				t.Errorf("--scheduler=%s: %q in it is %t; pods must ask for %s alone", scheduler, line, got, want)
			}
		}
	}
	if _, err := example("stock"); err == nil || !strings.Contains(err.Error(), "plugin or extender") {
		t.Errorf("a scheduler that there is not: %v", err)
	}
}
