package driver

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-storage/berth/driver/pool"
)

// uncertainError is a failed call whose effects could not be taken back. The CO
// must be told so by a code that it does not take as final, or it would never
// call the inverse (kubelet, volume/csi/csi_client.go, isFinalError).
type uncertainError struct {
	err, takingBack error
}

func (e *uncertainError) Error() string {
	return fmt.Sprintf("%v; and taking back what was done: %v", e.err, e.takingBack)
}

func (e *uncertainError) Unwrap() error { return e.err }

// tookBack is the error of a call that failed and tried to undo itself.
func tookBack(err, takingBack error) error {
	if takingBack == nil {
		return err
	}
	return &uncertainError{err: err, takingBack: takingBack}
}

// statusOf makes the answer to the CO out of an error.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codeOf(err), err.Error())
}

func codeOf(err error) codes.Code {
	var (
		uncertain *uncertainError
		exists    *pool.ExistsError
		exhausted *pool.ExhaustedError
		damaged   *pool.DamagedError
		answer    interface{ GRPCStatus() *status.Status }
	)
	switch {
	case errors.As(err, &uncertain):
		return codes.Unavailable
	case errors.As(err, &answer):
		return answer.GRPCStatus().Code()
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, pool.ErrNotFound):
		return codes.NotFound
	case errors.Is(err, pool.ErrInUse), errors.Is(err, syscall.EBUSY):
		return codes.FailedPrecondition
	case errors.As(err, &exists):
		return codes.AlreadyExists
	case errors.As(err, &exhausted):
		return codes.ResourceExhausted
	case errors.As(err, &damaged):
		return codes.DataLoss
	default:
		return codes.Internal
	}
}
