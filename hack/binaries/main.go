// Command binaries looks at built programs: each must be of the architecture
// asked for, and static, since the image holds nothing but them. See
// `make build-all`.
package main

import (
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	arch := flag.String("arch", "", "GOARCH of the programs")
	flag.Parse()
	if err := look(*arch, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "binaries:", err)
		os.Exit(1)
	}
}

func look(arch string, files []string) error {
	want, known := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
	if !known || len(files) == 0 {
		return fmt.Errorf("-arch=%q with %d files: use amd64 or arm64, and the files to look at", arch, len(files))
	}
	var errs []error
	for _, name := range files {
		if err := judge(name, want); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return fmt.Errorf("looking at a program: %w", err)
		}
		_, err = fmt.Fprintf(os.Stdout, "%-24s static %s %4d MiB\n", filepath.Base(name), arch, info.Size()>>20)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func judge(name string, want elf.Machine) error {
	f, err := elf.Open(name)
	if err != nil {
		return fmt.Errorf("reading the program: %w", err)
	}
	defer func() { _ = f.Close() }() // it was read only
	if f.Machine != want {
		return fmt.Errorf("it is for %s, not %s", f.Machine, want)
	}
	libraries, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("reading its libraries: %w", err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || len(libraries) > 0 {
			return fmt.Errorf("it is not static: it needs a loader and %v", libraries)
		}
	}
	return nil
}
