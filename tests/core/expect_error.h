// EXPECT_ERROR(statement, exit code, text): the statement throws an Error of this code whose
// message contains the text.
#pragma once

#include <gtest/gtest.h>

#include "core/error.h"

#define EXPECT_ERROR(statement, exit_code, text)                                            \
  try {                                                                                     \
    static_cast<void>(statement);                                                           \
    ADD_FAILURE() << "no error; expected: " << (text);                                      \
  } catch (const lockstep::Error& error) {                                                  \
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(exit_code)) << error.what(); \
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos)                      \
        << "  message: " << error.what() << "\n  expected: " << (text);                     \
  }
