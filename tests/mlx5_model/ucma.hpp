// rdma_cm: answers the commands that librdmacm writes to /dev/infiniband/rdma_cm. Both ends of each connection are in
// this process.
#pragma once

#include "hca_fabric.hpp"

namespace mlx5_model {

/// A new descriptor for librdmacm, or -errno.
int open_rdma_cm();
/// Removes the device: each identifier bound to the device gets RDMA_CM_EVENT_DEVICE_REMOVAL. From then on no
/// identifier can bind to the device.
void remove_from_rdma_cm(const DeviceFacts& device);

}  // namespace mlx5_model
